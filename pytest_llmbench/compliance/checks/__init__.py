"""The predicates: one per entry of the catalogue, by area. The docstring of a predicate states what meets the
entry."""
