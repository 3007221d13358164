"""HTTP/1.1 on sockets of our own: requests sent, replies read and stamped."""
