"""HTTP: a registry as an API of `POST /<namespace>/<name>`."""
