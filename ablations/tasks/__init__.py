"""The paper's five benchmarks as lm-eval tasks: one table, one template each, generated files.

lm-eval itself loads this package, through the ``!function`` names in the task files.
"""
