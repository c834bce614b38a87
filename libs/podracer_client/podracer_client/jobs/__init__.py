"""The SDK: `Client` submits jobs and reads what became of them, `Job` is one of them, `JobWatch` follows it."""
