"""What is known of the queue itself bounds what its requests may have waited."""
