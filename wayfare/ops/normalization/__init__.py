"""Layer norm, batch norm and its relatives, and the losses."""
