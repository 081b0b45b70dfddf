"""What a pod asks for: one ``Request`` from every common way of asking for a GPU."""
