"""The Kubernetes manifests of examples/: rendered by Helm, checked against published schemas."""
