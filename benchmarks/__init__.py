"""What the promises cost to keep: each module measures one layer, in a small and a full size."""
