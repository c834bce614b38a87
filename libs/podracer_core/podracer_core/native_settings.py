"""What the native libraries below torch read when they are loaded. This file imports nothing."""

NATIVE_SETTINGS = {
    # Threads that spin while they wait for one another starve whatever else runs on the same cores;
    # threads that sleep at once need about 50 µs to wake up, several times what most operations
    # take. So a short while of spinning (100 µs or so, GNU's OpenMP, which torch has on Linux),
    # then sleep: PPO on HalfCheetah, 64 environments, two cores: 20 thousand steps/s asleep, 21
    # spinning, 28 so. Others than GNU's know only the policy.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "3000",
    # A layer's results are large enough for the C library to give them back to the system each
    # time, which costs wide networks a tenth of their speed. (glibc's own names; whatever else
    # there is ignores them.)
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    # Every session of a stream is read by a thread of its own. The C library gives new threads new
    # arenas, up to eight a core, and keeps what each has ever had: half a megabyte a lost session.
    # Python's lock lets one thread at a time allocate anyway.
    "MALLOC_ARENA_MAX": "2",
}
"""Variables for a process that trains or simulates, read by its native libraries when they are
loaded."""
