"""Everything that can be asked of a broker: one protocol per noun, and the table of all verbs."""
