"""Where the servers are, how they are reached, and their stubs: `lookup` finds a connection, `stubs` opens it."""
