"""What one sees of a feed: figures, and the page that shows them."""
