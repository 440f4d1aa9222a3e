"""The paper's benchmarks and newer ones as lm-eval tasks: a template each, one table of languages.

lm-eval itself loads this package, through the ``!function`` names in the task files.
"""
