"""Market data and back-tests: price tables imported, policies played through the days, and what comes of it shown."""
