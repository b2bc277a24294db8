"""What is stored and sent: signed records, manifests, and the store on disk."""
