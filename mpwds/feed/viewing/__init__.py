"""What one sees of a feed: figures, tensor statistics, pictures, and the page that shows them."""
