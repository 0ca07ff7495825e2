"""What `paper.py` is made of: the cases, ours and the peers' runs of them, and how a peer's run is told."""
