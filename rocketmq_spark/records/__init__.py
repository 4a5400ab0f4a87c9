"""Message records as columns: their fields by numpy, Arrow columns made of them."""
