"""Engines that answer: lm-eval on HF or vLLM, and live ones whose tensors are swapped in place."""
