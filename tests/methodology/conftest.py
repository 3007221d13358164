"""Its place makes the helpers of this folder importable for the tests in folders below it."""
