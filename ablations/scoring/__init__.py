"""A model's answers as values: scores, samples, outcomes, and how they are read.

`SCORING_VERSION` belongs to this code and to `ablations.engines`, `ablations.statistics.corpus` and
`ablations.tasks`: raise it in the change that alters a score. It is part of what identifies one.
"""

SCORING_VERSION = 4
