"""What an operation is: its rows, its moves, its door. Knows nothing of stock, money or workers."""
