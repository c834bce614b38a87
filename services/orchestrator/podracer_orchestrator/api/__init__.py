"""The gRPC services of clients and pods: they decode, call the domain and encode."""
