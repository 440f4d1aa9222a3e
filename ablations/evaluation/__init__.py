"""Evaluation of one model: scores, intervals and per-sample records. Knows nothing of merging.

`ablations.evaluation.lm_eval_backend.evaluate` is the entry point for a checkpoint on disk;
`ablations.evaluation.evaluator.Evaluator` is the contract that any other evaluator fulfils.
"""
