"""The predicates: one per entry of the catalogue, by area."""
