"""`python -m podracer_client` is the `podracer` command."""

from podracer_client.command import main

if __name__ == "__main__":
    main()
