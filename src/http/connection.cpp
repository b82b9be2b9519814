#include "http/connection.h"

#include <utility>

#include "http/tcp_connection.h"

namespace baleen::http {

Response ConnectionHost::error_page(int status,
                                    const std::string& message,
                                    std::string_view path) const {
  return hooks().error_page ? hooks().error_page(status, message, path)
                            : Response::text(status, message + "\n");
}

std::shared_ptr<Connection> make_connection(boost::asio::ip::tcp::socket socket,
                                            std::string peer,
                                            ConnectionHost& host) {
  return std::make_shared<TcpConnection>(std::move(socket), std::move(peer), host);
}

}  // namespace baleen::http
