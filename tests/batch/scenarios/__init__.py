"""Small programs of many people, each run as a loop and by `wf.map` in many ways."""
