"""What `scale.py` is made of: real services, simulated pods, and the learning curves that these follow."""
