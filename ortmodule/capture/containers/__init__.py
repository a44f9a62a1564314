"""The containers around tensors in what a call is given and gives back: taken apart, put together, changed."""
