"""The graph drawn while Python runs: its nodes, and ways to walk and print it."""
