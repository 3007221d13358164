"""Several worker processes that together execute one LoadPlan, for loads beyond what one core can send."""
