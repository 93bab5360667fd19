"""The same numbers in another shape, order or place: views, padding, joins, slices."""
