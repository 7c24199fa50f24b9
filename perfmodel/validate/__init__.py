"""How wrong the model is against measured records."""
