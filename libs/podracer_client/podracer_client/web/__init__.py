"""The live page: a small server on loopback that follows jobs over gRPC and shows them in a
browser."""
