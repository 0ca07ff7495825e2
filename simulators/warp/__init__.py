"""The ant and the humanoid on MuJoCo Warp: simulator.py is what callers see, engine.py steps, the rest are tasks."""
