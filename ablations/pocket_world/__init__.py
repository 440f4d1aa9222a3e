"""The invented world of the pocket models: words, exercises of them, and streams to train on."""
