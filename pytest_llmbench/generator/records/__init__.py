"""What a plan's requests came to, on its way from the loop to columns; and the requests on theirs to it."""
