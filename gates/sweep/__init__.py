"""How a mapping holds up as the load rises: curves over the request rate or the concurrency, and the highest load that keeps the limits."""
