"""Steps the ant and the humanoid on MuJoCo Warp: simulator.py has the interface, engine.py steps, others are tasks."""
