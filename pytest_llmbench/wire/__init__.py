"""Wire dialects without sockets: encode a request, decode a reply's bytes to chunks, judge the reply."""
