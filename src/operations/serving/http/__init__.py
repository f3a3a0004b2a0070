"""HTTP: operations at `/<namespace>/<name>`, and their OpenAPI document."""
