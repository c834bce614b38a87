"""The training pool: how many pods each job has, the rows of pods, and the backends that make them:
`static` waits for pods that come by themselves, `local` starts processes of this machine,
`kubernetes` makes Jobs of a cluster."""
