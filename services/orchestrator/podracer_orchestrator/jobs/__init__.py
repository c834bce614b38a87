"""What a job is: its rows and states, what its spec asks for, the files and agents it starts from, listing jobs."""
