"""NVIDIA's simulators: near.py is what callers see; far/ runs in their own interpreter and knows nothing of podrace."""
