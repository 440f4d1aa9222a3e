"""What the commands `check`, `plan`, `merge` and `recipes` do, with any recipe or a shipped one."""
