"""Systems that are called in this process: async generators and ASGI applications, without a socket."""
