"""Map along recorded paths: examples whose path is known run batched, block by block, without Python."""
