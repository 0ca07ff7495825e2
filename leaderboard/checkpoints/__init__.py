"""Opens submitted checkpoints: reads them from the store within a deadline, and checks what their manifests state."""
