"""A merged model tensor by tensor, made from the files of its experts."""
