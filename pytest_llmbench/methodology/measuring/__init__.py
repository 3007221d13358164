"""Parts that the procedures of all sections share: warm-up, loads, validity, frame, manifest."""
