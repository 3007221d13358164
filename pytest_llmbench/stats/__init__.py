"""Statistics: percentiles, their intervals, and what dependence between requests costs.

Conventions, fixed once: percentiles are given as 0 to 100 and confidence levels as 0 to 1; a sample
percentile interpolates linearly between order statistics (type 7, AMB-36); samples stand in arrival order,
one vector per run; an end of an interval that the sample cannot support is ``None``.
"""
